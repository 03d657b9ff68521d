//go:build !linux

package testenv

import "syscall"

// dieWithParent is not to be had here: children of a demo that is killed live on.
func dieWithParent(*syscall.SysProcAttr) {}
