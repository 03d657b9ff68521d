package itemschema

// CheckInFull is what the library says.
func (s *Schema) CheckInFull(item []byte) []Fault { return s.check(item) }

// Finds reports whether the machine of a pattern finds it; known is false where there is none or it cannot say.
func Finds(pattern string, text []byte) (is, known bool) {
	if m := newMachine(pattern); m != nil {
		return m.finds(text)
	}
	return false, false
}

// Pieces reports whether the pieces of a pattern surely make up a text; known is false where it has none.
func Pieces(pattern string, text []byte) (are, known bool) {
	p := newPieces(pattern)
	return p != nil && p.end(text, 0) == len(text), p != nil
}

// Quick reports whether an item is known to fit without the library.
func (c *Checker) Quick(item []byte) bool {
	if c.quick == nil {
		return false
	}
	_, fits := c.quick.fits(item, 0)
	return fits
}
