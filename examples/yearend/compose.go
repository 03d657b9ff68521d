package yearend

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
)

// Function is the name that plans call [Compose] by.
const Function = "statement_pdf"

// The steps of a plan whose parts a statement is made of.
const (
	StepAccounts     = "accounts"
	StepTransactions = "transactions"
	StepBranches     = "branches"
)

// What Compose says of an account that no statement can be made of.
const (
	CodeUnbalanced  = "unbalanced"
	CodeMissingPart = "missing_part"
	CodeUnknownForm = "unknown_form"
)

// The forms that an item's payload may ask for.
const (
	PDFForm  = "pdf"
	JSONForm = "json"
)

// Wish is what a statement needs of an item's payload.
type Wish struct {
	Form string `json:"form"`
}

// Compose makes one statement of the parts that the steps before it have left.
func Compose(_ context.Context, item *fetch.Item) (fetch.Part, error) {
	var wish Wish
	if err := item.Decode(&wish); err != nil {
		return fetch.Part{}, err
	}
	if wish.Form != PDFForm && wish.Form != JSONForm {
		return fetch.Part{}, endpoints.Fail(CodeUnknownForm, "the form is %q; there are pdf and json", wish.Form)
	}
	var p Parts
	for step, into := range map[string]any{
		StepAccounts: &p.Account, StepTransactions: &p.Year, StepBranches: &p.Branch,
	} {
		there, err := item.DecodePart(step, into)
		if err == nil && !there {
			err = endpoints.Fail(CodeMissingPart, "the plan does not give it the part of step %s", step)
		}
		if err != nil {
			return fetch.Part{}, err
		}
	}
	statement, err := p.Statement()
	if err != nil {
		return fetch.Part{}, endpoints.Fail(CodeUnbalanced, "%v", err)
	}
	if wish.Form == JSONForm {
		return fetch.JSON(statement)
	}
	pdf, err := p.PDF()
	if err != nil {
		return fetch.Part{}, fmt.Errorf("account %s: %w", item.Key, err)
	}
	return fetch.Part{Data: pdf, ContentType: ContentType}, nil
}
