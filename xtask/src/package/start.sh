# Unpacks a system into a tmpfs and runs a script as its root. Arguments: SCRIPT ARCHIVE FILE...
# Where CHANGED names a file, an archive of the system as the script left it.
# It is the first process of namespaces of its own: what it mounts and starts ends with it.
set -eu
script=$1 archive=$2
shift 2

root=$(mktemp -d)
mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
tar -xf "$archive" -C "$root" --numeric-owner
mkdir "$root/given"
for file in "$@"; do cp -R "$file" "$root/given/"; done

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

status=0
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    sh -euc "$script" || status=$?
for mounted in proc sys dev; do umount -R -l "$root/$mounted"; done
if [ $status = 0 ] && [ -n "${CHANGED:-}" ]; then
    rm -r "$root/given"
    tar -cf "$CHANGED" -C "$root" --numeric-owner .
fi
umount -l "$root"
rmdir "$root"
exit $status
