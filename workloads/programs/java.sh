# a Java program: compiled and run by java, threads, garbage collection, direct buffers
. "${0%/*}/lib.sh"
need java
cat >Main.java <<'JAVA'
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;

public class Main {
    static long work(int seed) {
        Map<Integer, List<String>> table = new HashMap<>();
        for (int n = 0; n < 60000; n++) {
            table.computeIfAbsent((n * 7919 + seed) % 5003, k -> new ArrayList<>())
                .add("value" + n);
        }
        ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
        for (int n = 0; n < 1 << 18; n++) buffer.putInt(n * 4, n ^ seed);
        long sum = 0;
        for (List<String> list : table.values()) for (String value : list) sum += value.hashCode();
        for (int n = 0; n < 1 << 18; n++) sum += buffer.getInt(n * 4);
        return sum;
    }
    public static void main(String[] arguments) {
        System.out.println(IntStream.range(0, 8).parallel().mapToObj(Main::work)
            .collect(Collectors.toList()));
    }
}
JAVA
host java -Xmx256m Main.java
echo "status $?"
