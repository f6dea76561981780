package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// indexes are a set of completion indexes, written as "1,3-5".
type indexes map[int]bool

func (x indexes) clone() indexes {
	out := maps.Clone(x)
	if out == nil {
		out = indexes{}
	}
	return out
}

// parseIndexes reads those below size.
func parseIndexes(s string, size int) indexes {
	out := indexes{}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		for i := first; i <= min(last, size-1); i++ {
			out[i] = true
		}
	}
	return out
}

func (x indexes) String() string {
	var parts []string
	sorted := slices.Sorted(maps.Keys(x))
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, strconv.Itoa(sorted[i]))
		case 1:
			parts = append(parts, strconv.Itoa(sorted[i]), strconv.Itoa(sorted[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
