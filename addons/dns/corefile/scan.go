package corefile

import (
	"fmt"
	"strings"
)

// token is one word of a text.
type token struct {
	text   string
	file   string
	line   int
	begins bool // is the first of its line
	quoted bool
}

func (t token) opens() bool  { return t.text == "{" && !t.quoted }
func (t token) closes() bool { return t.text == "}" && !t.quoted }

func texts(tokens []token) (all []string) {
	for _, t := range tokens {
		all = append(all, t.text)
	}
	return all
}

// scan splits a text into words: a hash begins a comment, quotes hold words
// together, and over the end of a line too.
func scan(file, text string) (all []token, _ error) {
	line, begins := 1, true
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\n':
			line, begins = line+1, true
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '#':
			for i < len(text) && text[i] != '\n' {
				i++
			}
		default:
			t := token{file: file, line: line, begins: begins}
			begins = false
			if c == '"' {
				word, n, ok := unquote(text[i+1:])
				if !ok {
					return nil, fmt.Errorf("%s:%d: a quote has no end", file, line)
				}
				t.text, t.quoted = word, true
				line += strings.Count(text[i:i+1+n], "\n")
				i += 1 + n
			} else {
				end := i
				for end < len(text) && !strings.ContainsRune(" \t\r\n", rune(text[end])) {
					end++
				}
				t.text = text[i:end]
				i = end
			}
			if all = append(all, t); len(all) > maxTokens {
				return nil, fmt.Errorf("%s:%d: more than %d words", file, line, maxTokens)
			}
		}
	}
	return all, nil
}

// unquote reads up to the closing quote, and says how many bytes that are.
func unquote(text string) (word string, n int, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] == '"':
			b.WriteByte('"')
			i++
		case text[i] == '"':
			return b.String(), i + 1, true
		default:
			b.WriteByte(text[i])
		}
	}
	return "", 0, false
}
