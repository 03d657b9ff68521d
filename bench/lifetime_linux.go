package main

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it ends, as it does when we are killed.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
