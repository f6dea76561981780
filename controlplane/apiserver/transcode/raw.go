package transcode

import (
	"bytes"
	"encoding/json"
)

// appendRaw appends JSON that somebody sent. Field sets are objects of objects:
// they are checked in one pass; all else is for encoding/json.
func appendRaw(b, s []byte) ([]byte, error) {
	if objects(s) {
		return append(b, s...), nil
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, s); err != nil {
		return b, ErrUnusual
	}
	var safe bytes.Buffer
	json.HTMLEscape(&safe, buf.Bytes())
	return append(b, safe.Bytes()...), nil
}

// objects says that s is one compact JSON object of nothing but objects, whose
// names need no escape that encoding/json would add.
func objects(s []byte) bool {
	depth := 0
	for i := 0; i < len(s); {
		switch s[i] {
		case '{':
			depth++
			i++
			if i < len(s) && s[i] == '}' {
				continue
			}
		case '}':
			depth--
			i++
			if depth == 0 {
				return i == len(s)
			}
			if i < len(s) && s[i] == '}' {
				continue
			}
			if i >= len(s) || s[i] != ',' {
				return false
			}
			i++
		default:
			return false
		}
		// A name, its colon, and the object it names.
		if depth <= 0 || i >= len(s) || s[i] != '"' {
			return false
		}
		for i++; i < len(s) && s[i] != '"'; i++ {
			if s[i] == '\\' {
				if i++; i >= len(s) || (s[i] != '"' && s[i] != '\\') {
					return false
				}
			} else if !plain[s[i]] {
				return false
			}
		}
		i++
		if i+1 >= len(s) || s[i] != ':' || s[i+1] != '{' {
			return false
		}
		i++
	}
	return false
}
