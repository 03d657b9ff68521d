package erasure

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Messages that are kept and whose slice is not known are read: in which of them the key stands cannot be told
// otherwise.

const (
	// One that waited for somebody is dropped: it cannot be requeued without its body.
	emptyLetter = `body = CASE WHEN state = 'requeued' AND sent_at IS NOT NULL THEN ''::bytea END,
    state = CASE WHEN state = 'requeued' AND sent_at IS NOT NULL THEN state ELSE 'dropped' END,
    message = 'erased', stack = '', headers = '{}', changed_at = clock_timestamp()`
	letterIsEmpty = `message = 'erased' AND coalesce(octet_length(body), 0) = 0 AND headers = '{}'`

	emptyQuarantined = `body = '', detail = 'erased', headers = '{}'`

	// A page of a few, for they may be 16 MiB each. Of one run or of all.
	looseLetters = `
SELECT id::text, message || ' ' || stack || ' ' || origin, headers, coalesce(body, '') FROM dead_letter
WHERE id > coalesce(nullif($1, ''), '00000000-0000-0000-0000-000000000000')::uuid
    AND ($2::uuid IS NULL OR run_id = $2) AND (run_id IS NULL OR slice_id IS NULL) AND NOT (` + letterIsEmpty + `)
ORDER BY id LIMIT 8`
	eraseLetters = `UPDATE dead_letter SET ` + emptyLetter + ` WHERE id = ANY ($1::uuid[])`

	looseQuarantine = `
SELECT id::text, detail || ' ' || subject, headers, body FROM quarantine
WHERE id > coalesce(nullif($1, ''), '0')::bigint AND ($2::uuid IS NULL OR run_id = $2)
    AND (run_id IS NULL OR slice_id IS NULL) AND octet_length(body) > 0
ORDER BY id LIMIT 200`
	eraseQuarantine = `UPDATE quarantine SET ` + emptyQuarantined + ` WHERE id = ANY ($1::bigint[])`
)

// messages erases those in which the key stands, page by page.
func (e *erasure) messages(ctx context.Context, run *workqueue.RunID, page, erase string, into func(*Erased) *int64,
) (done Erased, err error) {
	for after := ""; ; {
		rows := pg.Rows(ctx, e.db.Pool, page, after, run)
		var found []string
		var id, said string
		var headers, body []byte
		read := 0
		_, err := pgx.ForEachRow(rows, []any{&id, &said, &headers, &body}, func() error {
			read, after = read+1, id
			if mentions([]byte(said), e.Key) || mentions(headers, e.Key) || mentions(plain(headers, body), e.Key) {
				found = append(found, id)
			}
			return nil
		})
		if err != nil || read == 0 {
			return done, err
		}
		if len(found) == 0 {
			continue
		}
		err = e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			var piece Erased
			tag, err := tx.Exec(ctx, erase, found)
			if err != nil {
				return err
			}
			*into(&piece) = tag.RowsAffected()
			return e.audit(ctx, tx, e.Run, &piece)
		})
		if err != nil {
			return done, err
		}
		*into(&done) += int64(len(found))
	}
}

const maxUnpacked = 16 << 20 // what services read at the most

// plain undoes the compression of the protocol, as far as the bytes reach.
func plain(headers, body []byte) []byte {
	if !bytes.HasPrefix(body, []byte{0x28, 0xb5, 0x2f, 0xfd}) && !strings.Contains(string(headers), "zstd") {
		return body
	}
	decoder, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return body
	}
	defer decoder.Close()
	var out bytes.Buffer
	_, _ = decoder.WriteTo(&out) // one that was cut is read up to there
	return out.Bytes()
}

// mentions reports whether a key stands in a text as a word, or, if it is very short, as a JSON string.
func mentions(text []byte, key string) bool {
	quoted, err := json.Marshal(key)
	if err != nil {
		return false
	}
	if utf8.RuneCountInString(key) < 4 {
		return bytes.Contains(text, quoted)
	}
	return hasWord(text, []byte(key)) || hasWord(text, quoted[1:len(quoted)-1])
}

func hasWord(text, word []byte) bool {
	for at := 0; ; {
		i := bytes.Index(text[at:], word)
		if i < 0 {
			return false
		}
		before, _ := utf8.DecodeLastRune(text[:at+i])
		after, _ := utf8.DecodeRune(text[at+i+len(word):])
		if !partOfWord(before) && !partOfWord(after) {
			return true
		}
		at += i + 1
	}
}

func partOfWord(r rune) bool {
	return r != utf8.RuneError && (r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r))
}
