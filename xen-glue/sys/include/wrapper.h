/*
 * What xen-sys takes from Xen's public headers (Debian: libxen-dev) and from
 * Linux's headers for its Xen device nodes (Debian: linux-libc-dev). Both
 * install into /usr/include/xen; Linux owns evtchn.h, gntalloc.h, gntdev.h
 * and privcmd.h there, everything else is Xen's.
 */
#include <stddef.h>
#include <stdint.h>

#define __XEN_TOOLS__ 1
#include <xen/xen.h>
#include <xen/event_channel.h>
#include <xen/grant_table.h>
#include <xen/memory.h>
#include <xen/hvm/dm_op.h>
#include <xen/hvm/hvm_op.h>
#include <xen/hvm/ioreq.h>
#include <xen/hvm/params.h>
#include <xen/io/xs_wire.h>

#include <xen/evtchn.h>
#include <xen/gntalloc.h>
#include <xen/gntdev.h>
#include <xen/privcmd.h>
