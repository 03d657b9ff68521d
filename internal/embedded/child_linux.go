package embedded

import "syscall"

// DieWithParent makes the kernel send the child a signal when the thread that started it ends, as it does when we are
// killed.
func DieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }
