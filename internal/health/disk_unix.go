//go:build linux || darwin

package health

import "syscall"

// spaceAt asks how much room there is for us, who are not root on that file system; nil: it cannot be told.
func spaceAt(dir string) *diskSpace {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return nil
	}
	block := uint64(s.Bsize)
	return &diskSpace{free: s.Bavail * block, size: s.Blocks * block}
}
