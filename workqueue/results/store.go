// Package results reads results as they are, and keeps those that do not fit a message. They come in pieces, each with
// what the service says about the whole, and stay in them: nothing here holds more of a result than a piece at once.
//
// A piece counts only while its slice is live and waits for its item, and when it comes from the endpoint that the
// slice was sent to. A result becomes that of its item in the transaction of settle that records it, once all pieces
// are here and have the size and the hash that the service said. What is not recorded is deleted once its slice has
// ended.
package results

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/tranchehq/tranche/workqueue/database"
)

// Store is the database for large results. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Reference is what stands in the place of a result that is kept apart: the same for the same result.
func Reference(bytes int64, sum [sha256.Size]byte) []byte {
	return fmt.Appendf(nil, `{"bytes":%d,"sha256":"%s"}`, bytes, hex.EncodeToString(sum[:]))
}
