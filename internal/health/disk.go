package health

// diskSpace is the room on the file system that a directory is on.
type diskSpace struct{ free, size uint64 }

// share is the part that is free.
func (d *diskSpace) share() float64 {
	if d.size == 0 {
		return 1
	}
	return float64(d.free) / float64(d.size)
}
