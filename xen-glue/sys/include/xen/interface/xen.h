/*
 * Linux's privcmd.h names Xen's header by the path it has inside the kernel
 * tree. Outside it, that header is this one.
 */
#include <xen/xen.h>
