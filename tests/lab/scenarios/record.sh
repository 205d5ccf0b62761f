# One guest for each kernel, one after the other: i915 is bound, all engines
# have done some work, and the registers that a switch carries over are
# recorded.

boot_limit=300
fact gpu "$LAB_GPU"
[ "$LAB_SHORT" = 1 ] && seconds=5 || seconds=20

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud

for guest in "g1 bookworm-6.1" "g2 trixie-6.12"; do
    name=${guest% *}
    kernel=${guest#* }
    [ -d "/lab/boot-$kernel" ] && guest_boot="/lab/boot-$kernel" || guest_boot=/lab/boot
    guest_config "$name" "" "$(vgpu_line)"
    fact "recording/$name" "$kernel"
    stage "xl create $name, kernel $kernel"
    guest_create "$name"
    stage "guest $name boots"
    guest_ready "$name" $boot_limit
    stage "$name: i915 is loaded"
    guest_do "$name" 300 i915 bind
    stage "$name: work on all engines"
    guest_do "$name" 60 work start all --engine all --passes 4 --buffers 2 --seconds "$seconds"
    guest_wait "$name" '^LAB work-exit/all ' $((seconds + 120)) "end of gpu-work"
    inspect "$name" worked
    guest_do "$name" 120 i915 complaints
    stage "guest $name goes"
    guest_start "$name" poweroff
    guest_gone "$name" 60
done
daemons_end
