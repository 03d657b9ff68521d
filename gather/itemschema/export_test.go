package itemschema

// CheckInFull is what the library says.
func (s *Schema) CheckInFull(item []byte) []Fault { return s.check(item) }
