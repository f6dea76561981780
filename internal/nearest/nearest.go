// Package nearest finds which of several names somebody meant who mistyped one. It reads and
// writes nothing.
package nearest

import (
	"fmt"
	"strings"
)

// maxName bounds the names that are compared, in bytes: what is longer is no slip.
const maxName = 100

// Hint is a question to end a message with, of the name that is most like the mistyped one;
// "" where none is like it. Pure.
func Hint(typed string, names []string) string {
	if name := Name(typed, names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}

// Name is the name that is most like the mistyped one: with few letters changed, left out, added
// or swapped, or with more behind it; "" for none. Upper and lower case are alike. Of several the
// first. Pure.
func Name(typed string, names []string) string {
	if typed == "" || len(typed) > maxName {
		return ""
	}
	typed = strings.ToLower(typed)
	least, found := max(1, len(typed)/3)+1, ""
	for _, name := range names {
		if len(name) > maxName {
			continue
		}
		if d := distance(typed, strings.ToLower(name)); d < least {
			least, found = d, name
		}
	}
	if found != "" || len(typed) < 3 {
		return found
	}
	for _, name := range names {
		if strings.HasPrefix(strings.ToLower(name), typed) && (found == "" || len(name) < len(found)) {
			found = name
		}
	}
	return found
}

// distance is how many bytes are changed, left out, added or swapped with the next from a to b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			changed := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				changed++
			}
			rows[i][j] = min(changed, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
