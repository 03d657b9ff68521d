package demo

import "testing"

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config         Config
		accounts, pdfs int // 0 accounts: refused
	}{
		{Config{}, 100_000, 0},
		{Config{PDFs: DefaultPDFs}, 100_000, 2000},
		{Config{Accounts: 300, PDFs: DefaultPDFs}, 300, 300},
		{Config{PDFs: AllPDFs}, 100_000, 100_000},
		{Config{Accounts: -1}, 0, 0},
		{Config{Accounts: 299}, 0, 0},
		{Config{Accounts: 10_000_001}, 0, 0},
		{Config{PDFs: -2}, 0, 0},
	} {
		got, err := test.config.withDefaults()
		if (err != nil) != (test.accounts == 0) ||
			err == nil && (got.Accounts != test.accounts || got.PDFs != test.pdfs) {
			t.Errorf("%+v: %d accounts, %d PDFs, %v; want %d, %d", test.config, got.Accounts, got.PDFs, err,
				test.accounts, test.pdfs)
		}
	}
}
