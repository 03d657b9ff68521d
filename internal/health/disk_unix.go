//go:build linux || darwin

package health

import "syscall"

// spaceAt returns the space available to a non-root user; nil: unknown.
func spaceAt(dir string) *diskSpace {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return nil
	}
	block := uint64(s.Bsize)
	return &diskSpace{free: s.Bavail * block, size: s.Blocks * block}
}
