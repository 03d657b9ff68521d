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
