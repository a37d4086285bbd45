#!/bin/sh
# what: every machine that is described boots, with all its nodes
# machines: every

equal "nodes with memory" "$LAB_MEMORY_NODES" "$(cat /sys/devices/system/node/has_memory)"
equal "nodes with CPUs" "$LAB_CPU_NODES" "$(cat /sys/devices/system/node/has_cpu)"
tiers=$(ls -d /sys/devices/virtual/memory_tiering/memory_tier[0-9]* | wc -l)
at_least "some memory tier exists" 1 "$tiers"
