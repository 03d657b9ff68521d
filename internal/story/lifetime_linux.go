package story

import "syscall"

// dieWithParent makes the kernel end the child when the thread that started it ends, as it does when we are killed. It
// does so by force: with its servers gone, the child could not stop in order.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
