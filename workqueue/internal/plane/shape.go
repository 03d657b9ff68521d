package plane

const (
	// wordCharacter is what a key that stands as a part of a longer word has beside it, in a regular expression: of
	// what is not ASCII all, for what a letter is depends on the database; and the mark of another key.
	wordCharacter = `[\w\u0001\u0080-\U0010FFFF]`

	// keyPlace is where the key stands in the message for the first time, and behindKey what stands behind it there.
	keyPlace  = `strpos(p.error_message, q.item_key COLLATE "default")`
	behindKey = `substr(p.error_message, ` + keyPlace + ` + char_length(q.item_key))`

	// betweenWords is what most keys have beside them.
	betweenWords = `' !#$%&()*+,-./:;<=>?@[\]^{|}~'`

	// KeyOfPart joins to a part p of a run its item q, by the primary key whatever the planner believes.
	KeyOfPart = `LEFT JOIN LATERAL (
    SELECT k.item_key FROM work_queue k WHERE k.run_id = p.run_id AND k.ordinal = p.ordinal OFFSET 0) q ON true`

	// spacedKey replaces the key where it stands between spaces.
	spacedKey = `replace(p.error_message, ' ' || q.item_key COLLATE "default" || ' ', ' {key} ')`

	// ErrorKeyed is an SQL expression on a part p that is to be written and its item q: what its work_part.error_keyed is,
	// the beginning of the error message with {key} for the item's own key, where that is a word of its own or stands
	// alone in quotes, and NULL where there is none. Keys of one character, and of digits and punctuation only, stay: the
	// first are words of any message, and the others are numbers, for which there is a # anyway. No key is ever read as a
	// pattern: it is replaced by a character that messages lose, which one pattern for all finds, and what it does not
	// find gets its key back. That is dear: a key that stands between spaces only, or once, between others than letters
	// and quotes, is replaced without.
	ErrorKeyed = `nullif(CASE
    WHEN p.error_message IS NULL OR ` + keyPlace + ` = 0 OR char_length(q.item_key) < 2
        OR q.item_key !~ '[^[:digit:][:punct:][:space:]]'
    THEN NULL
    WHEN strpos(` + spacedKey + `, q.item_key COLLATE "default") = 0 THEN left(` + spacedKey + `, 1000)
    WHEN strpos(` + betweenWords + `, substr(p.error_message, ` + keyPlace + ` - 1, 1)) > 0
        AND strpos(` + betweenWords + `, left(` + behindKey + `, 1)) > 0
        AND strpos(` + behindKey + `, q.item_key COLLATE "default") = 0
    THEN left(overlay(p.error_message PLACING '{key}' FROM ` + keyPlace + ` FOR char_length(q.item_key)), 1000)
    ELSE replace(regexp_replace(
        replace(translate(left(p.error_message, 1000), chr(1), ''), q.item_key COLLATE "default", chr(1)),
        '["''\u0060“«]\u0001["''\u0060”»]|(?<!` + wordCharacter + `)\u0001(?!` + wordCharacter + `)', '{key}', 'g'),
        chr(1), q.item_key COLLATE "default") END, left(p.error_message, 1000))`

	// messageKeyed is an SQL expression on work_part p: the beginning of the error message with {key} for the item's key.
	messageKeyed = `coalesce(p.error_keyed, left(p.error_message, 1000), '')`

	// MessageAlike is messageKeyed with a 0 for each digit: for shapes all digits are the same, and messages that differ
	// in them only, of which there are many, are the same before. It is compared byte by byte. replace is a third of the
	// work of translate.
	MessageAlike = `replace(replace(replace(replace(replace(replace(replace(replace(replace(` + messageKeyed + `,
    '1', '0'), '2', '0'), '3', '0'), '4', '0'), '5', '0'), '6', '0'), '7', '0'), '8', '0'), '9', '0') COLLATE "C"`

	// shape opens, and shaped closes, an SQL expression: a text with a # for each thing that differs from item to item.
	// These are, in this order: text in quotes, also when its end is missing, UUIDs, words with a letter after a digit,
	// words of 7 hexadecimal digits or more, and numbers, dates, times and lists of them.
	shape  = `left(regexp_replace(left(`
	shaped = `, 1000),
    '"[^"]*(?:"|$)|\u0060[^\u0060]*\u0060|“[^”]*”|«[^»]*»|\Y''[^'']*''\Y' ||
    '|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}' ||
    '|\m\w*[0-9][A-Za-z_]\w*\M|\m[0-9a-fA-F]{7,}\M|[0-9]+(?:(?:[.,:/-]|, )[0-9]+)*', '#', 'g'), 200)`

	// KeyedShape is the shape of a message p.keyed that [MessageAlike] made. Of messages that are longer than any person
	// reads, the beginning counts.
	KeyedShape = shape + `p.keyed COLLATE "default"` + shaped

	// KeyedGroup is MessageGroup of such a message.
	KeyedGroup = `left(md5(p.step || ':' || p.error_code || ':' || ` + KeyedShape + `), 8)`

	// MessageGroup is the id of a group of errors: of a step, a code and a shape, on work_part p. It is the same for
	// views, selections and reports.
	MessageGroup = `left(md5(p.step || ':' || p.error_code || ':' || ` + shape + messageKeyed + shaped + `), 8)`
)
