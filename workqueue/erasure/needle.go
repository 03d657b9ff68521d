package erasure

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// needle is a key to be found in any form: unchanged, escaped as in JSON and URLs, base64, zstd, and nested.
type needle string

const (
	maxUnpacked = 16 << 20 // most that services read
	maxNested   = 3        // most nested forms
)

// in reports whether the text contains the key as a word, or if very short, as the whole text or a JSON string.
func (n needle) in(text []byte, nested int) bool {
	text = unpacked(text)
	for range maxNested {
		if n.found(text) {
			return true
		}
		plain, changed := unescaped(text)
		if !changed {
			break
		}
		text = plain
	}
	return n.found(text) || nested > 0 && n.inBase64(text, nested-1)
}

func (n needle) found(text []byte) bool {
	if utf8.RuneCountInString(string(n)) >= 4 {
		return hasWord(text, []byte(n)) || hasWord(text, []byte(strings.ReplaceAll(string(n), " ", "+")))
	}
	quoted, err := json.Marshal(string(n))
	return string(text) == string(n) || err == nil && bytes.Contains(text, quoted) ||
		bytes.Contains(text, []byte(`"`+n+`"`))
}

func (n needle) inBase64(text []byte, nested int) bool {
	for len(text) > 0 {
		end := bytes.IndexFunc(text, func(r rune) bool { return !isBase64(r) })
		if end < 0 {
			end = len(text)
		}
		if base64.RawStdEncoding.DecodedLen(end) >= len(n) {
			run := bytes.ReplaceAll(bytes.ReplaceAll(text[:end], []byte("-"), []byte("+")), []byte("_"), []byte("/"))
			out := make([]byte, base64.RawStdEncoding.DecodedLen(end))
			read, _ := base64.RawStdEncoding.Decode(out, run) // truncated data is decoded up to its end
			if n.in(out[:read], nested) {
				return true
			}
		}
		text = text[min(end+1, len(text)):]
	}
	return false
}

func isBase64(r rune) bool {
	return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '+' || r == '/' || r == '-' || r == '_')
}

// unpacked undoes the protocol's compression, as far as the bytes reach.
func unpacked(body []byte) []byte {
	if !bytes.HasPrefix(body, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return body
	}
	decoder, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return body
	}
	defer decoder.Close()
	var out bytes.Buffer
	_, _ = io.Copy(&out, io.LimitReader(decoder, maxUnpacked)) // truncated data is decompressed up to its end
	return out.Bytes()
}

func unescaped(text []byte) (plain []byte, changed bool) {
	if !bytes.ContainsAny(text, `\%`) {
		return text, false
	}
	plain = make([]byte, 0, len(text))
	for at := 0; at < len(text); {
		if r, size := escape(text[at:]); size > 0 {
			plain, at, changed = append(plain, r...), at+size, true
			continue
		}
		plain, at = append(plain, text[at]), at+1
	}
	return plain, changed
}

// escape decodes the escape at the start of a text. The size is 0 without one.
func escape(text []byte) (is string, size int) {
	if text[0] == '%' && len(text) > 2 {
		if b, err := strconv.ParseUint(string(text[1:3]), 16, 8); err == nil {
			return string([]byte{byte(b)}), 3
		}
	}
	if text[0] != '\\' || len(text) < 2 {
		return "", 0
	}
	switch text[1] {
	case 'u':
		first := unit(text)
		if second := unit(text[min(6, len(text)):]); utf16.IsSurrogate(first) && second > 0 {
			return string(utf16.DecodeRune(first, second)), 12
		}
		if first < 0 {
			return "", 0
		}
		return string(first), 6
	case '"', '\\', '/':
		return string(text[1:2]), 2
	}
	if at := strings.IndexByte("nrtbf", text[1]); at >= 0 {
		return "\n\r\t\b\f"[at : at+1], 2
	}
	return "", 0
}

func unit(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	code, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(code)
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

// All stored messages are read, regardless of their run or slice, since services may send some on their own.

const (
	// A waiting letter is dropped: it cannot be requeued without its body.
	emptyLetter = `body = CASE WHEN state = 'requeued' AND sent_at IS NOT NULL THEN ''::bytea END,
    state = CASE WHEN state = 'requeued' AND sent_at IS NOT NULL THEN state ELSE 'dropped' END,
    message = 'erased', stack = '', origin = '', headers = '{}', changed_at = tranche_now()`
	letterIsEmpty = `message = 'erased' AND coalesce(octet_length(body), 0) = 0 AND headers = '{}'`

	emptyQuarantined   = `body = '', detail = 'erased', subject = '', headers = '{}'`
	quarantinedIsEmpty = `octet_length(body) = 0 AND detail = 'erased'`

	// A small page, since bodies may be 16 MiB each. Of one run or all.
	letters = `
SELECT id::text, concat_ws(E'\n', message, stack, origin), headers, coalesce(body, ''), run_id FROM dead_letter
WHERE id > coalesce(nullif($1, ''), '00000000-0000-0000-0000-000000000000')::uuid
    AND ($2::uuid IS NULL OR run_id = $2) AND NOT (` + letterIsEmpty + `)
ORDER BY id LIMIT 4`
	eraseLetters = `UPDATE dead_letter SET ` + emptyLetter + ` WHERE id = ANY ($1::uuid[])`

	quarantined = `
SELECT id::text, concat_ws(E'\n', detail, subject), headers, body, run_id FROM quarantine
WHERE id > coalesce(nullif($1, ''), '0')::bigint AND ($2::uuid IS NULL OR run_id = $2)
    AND NOT (` + quarantinedIsEmpty + `)
ORDER BY id LIMIT 200`
	eraseQuarantine = `UPDATE quarantine SET ` + emptyQuarantined + ` WHERE id = ANY ($1::bigint[])`
)

type message struct {
	ID, Said      string
	Headers, Body []byte
	Run           *workqueue.RunID
}

func (e *erasure) messages(ctx context.Context, run *workqueue.RunID, page, erase string, into func(*Erased) *int64,
) (done Erased, err error) {
	for after := ""; ; {
		// Held whole: looking up a key in an open loop would need a second connection.
		read, err := pg.Collect(ctx, e.db.Pool, pgx.RowToStructByPos[message], page, after, run)
		if err != nil || len(read) == 0 {
			return done, err
		}
		var found []string
		for i := range read {
			after = read[i].ID
			in, err := e.inMessage(ctx, &read[i])
			if err != nil {
				return done, err
			}
			if in {
				found = append(found, after)
			}
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

// inMessage reports whether a message has the key, or is damaged. Without the key of its run its body is not searched.
func (e *erasure) inMessage(ctx context.Context, m *message) (bool, error) {
	n := needle(e.Key)
	if n.in([]byte(m.Said), maxNested) || n.in(m.Headers, maxNested) {
		return true, nil
	}
	seal, err := e.db.SealOfMessage(ctx, m.Run)
	if _, noKey := errors.AsType[*workqueue.StateError](err); noKey {
		e.unsearched += min(len(m.Body), 1)
		return false, nil
	}
	if err == nil {
		m.Body, err = seal.OpenBytes(place(m.ID), m.Body)
	}
	if err != nil && database.Unreadable(err) {
		return true, nil
	}
	return err == nil && n.in(m.Body, maxNested), err
}

// place is where a body is: the IDs of letters are UUIDs, those of messages in quarantine numbers.
func place(id string) database.Place {
	if letter, err := uuid.Parse(id); err == nil {
		return database.LetterOf(workqueue.LetterID(letter))
	}
	return database.InQuarantine()
}
