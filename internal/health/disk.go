package health

import "math"

// diskSpace is the room on the file system that a directory is on.
type diskSpace struct{ free, size uint64 }

// FreeAt is how many bytes are free where a directory is; false: it cannot be told.
func FreeAt(dir string) (bytes int64, known bool) {
	space := spaceAt(dir)
	if space == nil {
		return 0, false
	}
	return int64(min(space.free, math.MaxInt64)), true
}

// share is the part that is free.
func (d *diskSpace) share() float64 {
	if d.size == 0 {
		return 1
	}
	return float64(d.free) / float64(d.size)
}
