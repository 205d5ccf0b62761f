# Scenario i915 with the device model of g1 in a domain of its own; that of g2 is
# a process of dom0 beside it, to compare.

# The folder's kernel and modules are those of dom0, whose packages a stub image
# is made of.
stage "the stub image is made"
start=$(uptime_now)
vgpu-stub-image --kernel /boot/vmlinuz-* --modules /usr/lib/modules/* --dm /opt/vgpu/bin/vgpu-dm-static >/results/stub-image.txt 2>&1 ||
    finish "vgpu-stub-image: $(tail -n 1 /results/stub-image.txt)"
fact stub-image-seconds "$(since "$start")"
fact stub-image-kib "$(du -k /var/lib/vgpu/stub/initramfs.gz | cut -f1)"

# The domain beside its guest: one waits while the other works.
mkdir -p /etc/vgpu
cat >/etc/vgpu/vgpud.toml <<CONFIG
stub = true
stub_cpus = "1"
stub_memory = ${LAB_STUB_MEMORY:-64}
CONFIG
tail -n +1 -F /var/log/xen/console/guest-vgpu-dm-1.log 2>/dev/null | sed -u 's/^/[stub] /' &

# stub_here: what xl and vgpud know of g1's stub domain.
stub_here() {
    g1=$(cat /run/domid-g1)
    xl list >/results/xl-list-stub.txt
    fact stub-memory-mb "$(awk -v n="vgpu-dm-$g1" '$1 == n { print $3 }' /results/xl-list-stub.txt)"
    ask stub-list list --json
}

# stubs_end: nothing of a stub domain is left when its guest is gone.
stubs_end() {
    tries=0
    while xl list | grep -qE 'vgpu-dm-|\(null\)' && [ $tries -lt 20 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    fact stubs-left "$(xl list | grep -cE 'vgpu-dm-|\(null\)')"
    fact stub-nodes-left "$(xenstore-ls /local/domain | grep -c device-model-vgpu)"
}

g2_option=stub=0
. /lab/scenarios/i915.sh
stubs_end
