# Pages granted and event channels on this Xen: dom0 grants to itself, from one
# process to another, and either is killed again and again.

# grants_left WHEN: pages of dom0's that somebody maps.
grants_left() {
    xl debug-keys g
    sleep 0.5
    xl dmesg -c >"/results/xen-grants-$1.txt"
    fact "grants-reported/$1" "$(grep -c 'grant-table for remote d0 ' "/results/xen-grants-$1.txt")"
    fact "grants-mapped/$1" "$(grep -c '\[0x[0-9a-f]*\]  *[0-9]' "/results/xen-grants-$1.txt")"
}

# 2700 pages for an area and its pipe; a bench has two areas. A page that was let
# go of while it was mapped is freed by a timer, ten a second: all at once here, or
# dom0's table is full of those of the killed.
echo 16384 >/sys/module/xen_gntalloc/parameters/limit
echo 0 >/sys/module/grant_table/parameters/free_per_iteration
xl dmesg >/results/xen-dmesg-boot.txt
grants_left before
stage "areas over grants, and the ends of either side"
timeout 200 grant-loop >/results/grant-loop.txt 2>&1
fact grant-loop-exit $?
cat /results/grant-loop.txt
grep '^LAB ' /results/grant-loop.txt >>/results/dom0.facts
block grant-loop /results/grant-loop.txt
grants_left after
stage "the ring bench over both transports"
timeout 200 vgpuctl bench ring --json --rounds 21 --trips 200 \
    >/results/bench-ring.json 2>/results/bench-ring.err
fact bench-ring-status $?
block bench-ring /results/bench-ring.json
block bench-ring-said /results/bench-ring.err
cat /results/bench-ring.json /results/bench-ring.err
