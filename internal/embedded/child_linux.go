package embedded

import "syscall"

// DieWithParent makes the kernel signal the child when the thread that started it ends, as when this process is
// killed.
func DieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }
