# i915.sh probe|report|igt|mmio: what the scenario i915 asks of a guest, and
# bind|complaints: the short forms of the first two.
# Programs are Debian's; only mmio-latency is ours.

# log_block NAME: standard input as a block of the report
log_block() {
    echo "LAB= $1"
    sed "s|^|LAB+ $1 |"
}
uptime_now() { cut -d' ' -f1 /proc/uptime; }

# The PCI device that i915 would bind.
find_vgpu() {
    for device in /sys/bus/pci/devices/*; do
        read -r vendor <"$device/vendor"
        read -r class <"$device/class"
        case "$vendor $class" in
        "0x8086 0x03"*) echo "${device##*/}" && return ;;
        esac
    done
}

list_pci() {
    for device in /sys/bus/pci/devices/*; do
        driver=$(readlink "$device/driver" || echo -)
        echo "${device##*/} $(cat "$device/vendor" "$device/device" "$device/revision" "$device/class" | tr '\n' ' ')${driver##*/}"
        sed 's/^/    /' "$device/resource" | grep -v '0x0000000000000000 0x0000000000000000'
    done
}

state() {
    # i915's state as sysfs and debugfs show it.
    wedged
    for engine in /sys/class/drm/card0/engine/*; do
        [ -f "$engine/name" ] && cat "$engine/name"
    done | log_block engines
    for connector in /sys/class/drm/card0-*; do
        [ -d "$connector" ] || continue
        name=${connector##*/card0-}
        echo "$name $(cat "$connector/status") $(wc -c <"$connector/edid")" | log_block "connector/$name"
        log_block "modes/$name" <"$connector/modes"
    done
    grep -E 'i915' /proc/interrupts | log_block interrupts
    ls /sys/kernel/debug/dri/0 2>/dev/null | log_block debugfs
}

wedged() {
    [ -e /sys/kernel/debug/dri/0/i915_wedged ] &&
        echo "LAB wedged $(cat /sys/kernel/debug/dri/0/i915_wedged)"
}

# Of the kernel's log what the driver said.
driver_log() { dmesg | grep -E 'i915|drm'; }

case $1 in
bind)
    modprobe i915
    echo "LAB modprobe-status $?"
    dmesg -n 1
    driver_log | log_block dmesg-probe
    wedged
    ;;
complaints)
    driver_log | log_block dmesg
    wedged
    ;;
probe)
    list_pci | log_block pci-before
    echo "LAB vgpu-slot $(find_vgpu)"
    start=$(uptime_now)
    echo "LAB probe-start $start"
    # Kernel lines go to the console while we are silent: should the probe
    # hang, they are all there is.
    modprobe i915
    echo "LAB modprobe-status $?"
    echo "LAB probe-end $(uptime_now)"
    # From here on the console is ours alone.
    dmesg -n 1
    list_pci | log_block pci
    dmesg | log_block dmesg-probe
    state
    ;;
report)
    state
    dmesg | log_block dmesg
    # Whatever hung: the kernel's own account of it.
    cat /sys/class/drm/card0/error 2>/dev/null | head -n 200 | log_block gpu-error
    ;;
igt) # TAG PROGRAM SUBTESTS SECONDS [VARIABLE=VALUE...]
    tag=$2
    program=$3
    subtests=$4
    seconds=$5
    shift 5
    dynamic=
    case $subtests in
    *@*) dynamic="--dynamic-subtest ${subtests#*@}" ;;
    esac
    start=$(uptime_now)
    # shellcheck disable=SC2086 # words, or nothing
    env "$@" timeout -k 5 "$seconds" "/usr/libexec/igt-gpu-tools/$program" --run-subtest "${subtests%%@*}" $dynamic >/run/igt.out 2>&1
    status=$?
    log_block "$tag/$program@$subtests" </run/igt.out
    echo "LAB $tag-exit/$program@$subtests $status $start $(uptime_now)"
    ;;
mmio) # ROUNDS
    # FPGA_DBG 0x42300: a register that nothing else watches; QEMU's edu has
    # its identification at 0.
    ours=
    vgpu=$(find_vgpu)
    [ -n "$vgpu" ] && ours=vgpu=8086:$(sed 's/^0x//' "/sys/bus/pci/devices/$vgpu/device"):42300
    /run/lab/mmio-latency "$2" $ours qemu=1234:11e8:0 2>&1 || echo "LAB mmio-failed $?"
    ;;
*)
    echo "LAB guest-failed i915.sh: $1 is none of bind, complaints, probe, report, igt, mmio"
    exit 2
    ;;
esac
