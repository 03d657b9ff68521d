package embedded

import "syscall"

// dieWithParent makes the kernel shut the child down at once when the thread that started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
