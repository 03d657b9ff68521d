package yearend_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const maxPDF = 40 << 10

// parts are an account's whose year goes up and down.
func parts() *yearend.Parts {
	p := &yearend.Parts{
		Account: bank.Account{
			Account: 4711, Number: "HS12 0150 0000 4711", Kind: "Current account", Opened: "2011-03-07",
			Owner: "Zoë Østergård-Müller", Street: "Rue de l’Église (rear) 14", Place: "0150 Harbour", Opening: 123456,
		},
		Branch: bank.Branch{
			Branch: 7, Name: "Northgate", Street: "Northgate Street 22", Place: "0420 Harbour",
			Phone: "+47 22 00 04 07", Adviser: "Ingrid Solheim",
		},
	}
	p.Year.Year = bank.BusinessYear
	p.Account.Closing = p.Account.Opening
	for i := range p.Year.Months {
		m := bank.Month{Movements: int64(5 + i%4), In: 285000 + int64(i*i)*700, Out: 241055 + int64((i*7919)%12)*9731}
		p.Year.Months[i] = m
		p.Account.Closing += m.In - m.Out
	}
	return p
}

// extremes are accounts that strain the page.
func extremes() map[string]*yearend.Parts {
	quiet := parts()
	quiet.Year.Months = [12]bank.Month{}
	quiet.Account.Closing = quiet.Account.Opening
	empty := &yearend.Parts{Account: bank.Account{Number: "0000 0000"}, Year: bank.Year{Year: bank.BusinessYear}}
	rich := parts()
	rich.Account.Owner = strings.Repeat("Wilhelmina ", 6) + "von und zu Überlingen"
	rich.Account.Opening, rich.Account.Closing = 98765432109876, 98765432109876
	for i := range rich.Year.Months {
		rich.Year.Months[i] = bank.Month{Movements: 123456, In: 1234567890123, Out: 1234567890123}
	}
	poor := parts()
	poor.Account.Opening -= 9_000_000
	poor.Account.Closing -= 9_000_000
	return map[string]*yearend.Parts{"usual": parts(), "quiet": quiet, "empty": empty, "rich": rich, "poor": poor}
}

// With LOOK=DIR in the environment the pages are left in that directory, to be looked at.
func TestPDF(t *testing.T) {
	t.Parallel()
	for name, p := range extremes() {
		pdf := testenv.Must(p.PDF())(t)
		again := testenv.Must(p.PDF())(t)
		if !bytes.Equal(pdf, again) {
			t.Errorf("%s: the same parts made other bytes", name)
		}
		if len(pdf) > maxPDF {
			t.Errorf("%s: %d bytes, want at most %d", name, len(pdf), maxPDF)
		}
		testenv.Same(t, bytes.Count(pdf, []byte("/Type /Page\n")), 1, "%s: pages", name)
		if bytes.Contains(pdf, []byte("/Subtype /Image")) {
			t.Errorf("%s: there is an image; it is all to be vectors", name)
		}
		if dir := os.Getenv("LOOK"); dir != "" {
			testenv.NoError(t, os.WriteFile(filepath.Join(dir, name+".pdf"), pdf, 0o600))
		}
		s := testenv.Must(p.Statement())(t)
		printed := testenv.Must(yearend.Read(pdf))(t)
		want := yearend.Printed{
			Account: s.Account, Movements: s.Movements, Opening: s.Opening, In: s.In, Out: s.Out, Closing: s.Closing,
		}
		testenv.Same(t, printed, want, "%s is printed", name)
	}
}

func item(t *testing.T, p *yearend.Parts, form string) *fetch.Item {
	t.Helper()
	encode := func(v any) []byte {
		return testenv.Must(json.Marshal(v))(t)
	}
	return &fetch.Item{
		Ordinal: 3, Key: "4711", Payload: encode(map[string]string{"account": "4711", "form": form}),
		Parts: map[string]fetch.Part{
			yearend.StepAccounts: {Data: encode(p.Account)}, yearend.StepTransactions: {Data: encode(p.Year)},
			yearend.StepBranches: {Data: encode(p.Branch)},
		},
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	p := parts()
	want := testenv.Must(p.PDF())(t)
	part, err := yearend.Compose(t.Context(), item(t, p, yearend.PDFForm))
	if err != nil || part.ContentType != yearend.ContentType || !bytes.Equal(part.Data, want) {
		t.Errorf("a PDF: %d bytes of %s, %v", len(part.Data), part.ContentType, err)
	}
	part = testenv.Must(yearend.Compose(t.Context(), item(t, p, "json")))(t)
	var got yearend.Statement
	testenv.NoError(t, json.Unmarshal(part.Data, &got))
	if statement, _ := p.Statement(); got != statement || part.ContentType != "" {
		t.Errorf("JSON: %+v, want %+v", got, statement)
	}

	p.Account.Closing++
	_, err = yearend.Compose(t.Context(), item(t, p, "json"))
	expectCode(t, err, yearend.CodeUnbalanced)
	partless := item(t, p, "json")
	delete(partless.Parts, yearend.StepBranches)
	_, err = yearend.Compose(t.Context(), partless)
	expectCode(t, err, yearend.CodeMissingPart)
}

func expectCode(t *testing.T, err error, code string) {
	t.Helper()
	if slot := fetch.ErrorOf(err, false); err == nil || slot.Code != code {
		t.Errorf("got %v, want code %s", err, code)
	}
}
