//go:build !linux

package story

import "syscall"

// dieWithParent is not to be had here: children of a program that is killed live on.
func dieWithParent(*syscall.SysProcAttr) {}
