# a Go program: built by go itself, goroutines, maps, and C's malloc through cgo
. "${0%/*}/lib.sh"
need go gcc
export GOCACHE="$PWD/cache" GOFLAGS=-mod=mod GOPATH="$PWD/path" GO111MODULE=off GOTOOLCHAIN=local
cat >main.go <<'GO'
package main

// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

func work(seed, count int) (sum int) {
	table := map[int][]byte{}
	for n := 0; n < count; n++ {
		key := (n*7919 + seed) % 5003
		table[key] = append(table[key], make([]byte, n%300)...)
		block := C.malloc(C.size_t(n%20000 + 1))
		C.memset(block, C.int(n), C.size_t(n%20000+1))
		sum += int(*(*byte)(unsafe.Pointer(uintptr(block) + uintptr(n%20000))))
		C.free(block)
	}
	for _, value := range table {
		sum += len(value)
	}
	return sum
}

func main() {
	sums := make([]int, 8)
	var group sync.WaitGroup
	for g := range sums {
		group.Add(1)
		go func(g int) { defer group.Done(); sums[g] = work(g, 40000) }(g)
	}
	group.Wait()
	fmt.Println(sums)
}
GO
host go build -o main main.go
echo "status $?"
host ./main
echo "status $?"
