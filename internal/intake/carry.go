package intake

import (
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/intake/sorting"
)

// carriedRows are items that come whole from elsewhere.
type carriedRows struct {
	key string
	get func(*row.Item) error
}

func (c *carriedRows) Next(item *row.Item) error { return c.get(item) }
func (c *carriedRows) KeyName() string           { return c.key }

// Carry reads items that were taken in before, and are whole: get fills one, or returns io.EOF. key names where keys
// come from, if that is known. Of cfg the schema and the order hold.
func Carry(key string, cfg Config, get func(*row.Item) error) *Reader {
	r := &Reader{rows: &carriedRows{key, get}, format: Run, unit: "item"}
	if cfg.Sort != "" {
		r.sorter = sorting.New(cfg.Sort, cfg.Desc, *cfg.Spool)
	}
	if cfg.Schema != nil {
		r.check = &schemaCheck{schema: cfg.Schema, lenient: cfg.TakeInvalid, source: cfg.Source}
	}
	return r
}
