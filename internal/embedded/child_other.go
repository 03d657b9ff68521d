//go:build !linux

package embedded

import "syscall"

// DieWithParent is not to be had here: children of a program that is killed live on.
func DieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
