package row

// Item is one row.
type Item struct {
	// Key identifies the entity: 1 to intake.MaxKeyBytes bytes, valid UTF-8, no NUL.
	Key string
	// Payload is one compact JSON object. Next overwrites it in place: an Item that is used again loses its old payload,
	// so copy the bytes, or use a fresh Item, to keep them.
	Payload []byte
	// Line is the 1-based line of the input, after decompression, where the row starts.
	Line int
	// Invalid says in what the payload does not fit intake.Config.Schema; empty when it does, or when nobody takes what
	// does not.
	Invalid string
}
