package demo

import "syscall"

// dieWithParent makes the kernel stop the child when the thread that started it ends, as it does when we are killed.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
