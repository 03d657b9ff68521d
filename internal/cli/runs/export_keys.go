package runs

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tranchehq/tranche/internal/cli"
)

// exportKeys picks items for an export of files.
type exportKeys struct {
	Key   []string `xor:"which" sep:"none" help:"Only this item; may stand more than once." placeholder:"K"`
	Code  []string `xor:"which" sep:"none" help:"Only items that failed with this code; may stand more than once." placeholder:"C"`
	Group []string `xor:"which" sep:"none" help:"Only items that failed with a message of this group of tranche run errors; may stand more than once." placeholder:"G"`
	Keys  string   `xor:"which" help:"With --dir, only of the items of a file with a key a line; - is standard input." placeholder:"FILE"`
}

// wanted are the keys; nil means all.
func (k *exportKeys) wanted(stdin io.Reader) (map[string]bool, error) {
	parts := [][]string{k.Key}
	if k.Keys != "" {
		var err error
		if parts, err = cli.ReadKeys(k.Keys, stdin); err != nil {
			return nil, err
		}
	}
	if len(k.Key) == 0 && k.Keys == "" {
		return nil, nil
	}
	wanted := map[string]bool{}
	for _, part := range parts {
		for _, key := range part {
			wanted[key] = true
		}
	}
	return wanted, nil
}

// wants reports whether the item is to be exported, and remembers that it was there.
func (e *fileExport) wants(key string) bool {
	if e.wanted == nil {
		return true
	}
	wanted := e.wanted[key]
	delete(e.wanted, key)
	return wanted
}

// tellMissing says which keys were wanted and have no result.
func (e *fileExport) tellMissing(term *cli.Console) {
	if len(e.wanted) == 0 {
		return
	}
	first := slices.Min(slices.Collect(maps.Keys(e.wanted)))
	term.Note("warning: %s of the keys have no result in this run, such as %s", cli.Count(int64(len(e.wanted))),
		cli.Inert(fmt.Sprintf("%q", cli.Short(first, 100))))
}
