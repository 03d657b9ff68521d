package cli

// Evidence is what is known of items and of what was made of them.
type Evidence struct {
	Service     string   `help:"Only what this service made: NAME, NAME@VERSION, or with the instance." placeholder:"NAME@VERSION"`
	Since       PastTime `help:"Only what was recorded since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
	Until       PastTime `help:"Only what was recorded before." placeholder:"TIME"`
	Where       string   `help:"Only items for whose payload this path of SQL/JSON holds: $$.branch == \"12\"." placeholder:"PATH"`
	WhereResult string   `help:"Only items for whose result it holds." placeholder:"PATH"`
	Corrected   bool     `help:"Only items whose data was corrected."`
}
