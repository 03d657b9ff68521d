package settle

// Again lets a line go on whose head was taken back, if it has one.
func (m *LaneMoves) Again(l *LaneRow) {
	if l.Head == nil {
		m.Follow(l)
		return
	}
	if l.next != nil && l.next.Item == *l.Head {
		m.Release(l.next)
	}
	if *l.Low >= *l.Head {
		l.Low = nil
	}
	m.Set(l.Lane, l.Head, l.Low, nil)
}
