//go:build !linux

package embedded

import "syscall"

// DieWithParent does nothing here: children of a killed process live on.
func DieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// syncsAll is false: initdb syncs what it wrote.
const syncsAll = false

func syncTree(string) error { return nil }
