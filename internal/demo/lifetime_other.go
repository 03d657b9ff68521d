//go:build !linux

package demo

import "syscall"

// dieWithParent is not to be had here: children of a demo that is killed live on.
func dieWithParent(*syscall.SysProcAttr) {}
