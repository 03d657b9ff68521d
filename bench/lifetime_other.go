//go:build !linux

package main

import "syscall"

// dieWithParent is not to be had here: children of a benchmark that is killed live on.
func dieWithParent(*syscall.SysProcAttr) {}
