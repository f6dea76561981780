package ingress

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// maxList is how many members the list of an annotation can have.
const maxList = 1000

func boolean(to *bool, value string) (err error) {
	switch value {
	case "true":
		*to = true
	case "false":
		*to = false
	default:
		err = fmt.Errorf("%q is neither true nor false", clipped(value))
	}
	return err
}

func number(to *int, value string, least, most int) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is no number from %d to %d", clipped(value), least, most)
	}
	*to = n
	return nil
}

// text takes a value that goes into a header or a path.
func text(to *string, value string) error {
	for _, r := range value {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%q has a control character", clipped(value))
		}
	}
	*to = value
	return nil
}

// seconds takes a number of seconds, with or without nginx's units.
func seconds(to *time.Duration, value string) error {
	for _, unit := range []struct {
		suffix string
		is     time.Duration
	}{{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}, {"", time.Second}} {
		digits, ok := strings.CutSuffix(value, unit.suffix)
		if n, err := strconv.Atoi(digits); ok && err == nil && n >= 0 && time.Duration(n) <= 10*365*24*time.Hour/unit.is {
			*to = time.Duration(n) * unit.is
			return nil
		}
	}
	return fmt.Errorf("%q is no number of seconds", clipped(value))
}

// size takes nginx's sizes: a number, with k, m or g.
func size(to *int64, value string) error {
	scale, digits := int64(1), value
	if digits != "" {
		switch digits[len(digits)-1] | 0x20 {
		case 'k':
			scale, digits = 1<<10, digits[:len(digits)-1]
		case 'm':
			scale, digits = 1<<20, digits[:len(digits)-1]
		case 'g':
			scale, digits = 1<<30, digits[:len(digits)-1]
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/scale {
		return fmt.Errorf("%q is no size such as 8m", clipped(value))
	}
	*to = n * scale
	return nil
}

// list splits at commas.
func list(value string) (all []string, err error) {
	for one := range strings.SplitSeq(value, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		if all = append(all, one); len(all) > maxList {
			return nil, fmt.Errorf("it has more than %d members", maxList)
		}
	}
	return all, nil
}

// ranges takes addresses and ranges of them.
func ranges(to *[]netip.Prefix, value string) error {
	all, err := list(value)
	if err != nil {
		return err
	}
	var found []netip.Prefix
	for _, one := range all {
		p, err := netip.ParsePrefix(one)
		if err != nil {
			a, err := netip.ParseAddr(one)
			if err != nil {
				return fmt.Errorf("%q is no range of addresses such as 10.0.0.0/8", clipped(one))
			}
			p = netip.PrefixFrom(a.WithZone(""), a.BitLen())
		}
		found = append(found, p.Masked())
	}
	if len(found) == 0 {
		return fmt.Errorf("it names no range of addresses")
	}
	*to = found
	return nil
}

// codes takes HTTP's status codes.
func codes(to *[]int, value string, least int) error {
	all, err := list(value)
	if err != nil {
		return err
	}
	var found []int
	for _, one := range all {
		var n int
		if err := number(&n, one, least, 599); err != nil {
			return err
		}
		found = append(found, n)
	}
	*to = found
	return nil
}

// names takes a list of tokens as headers and methods are.
func names(to *[]string, value string) error {
	all, err := list(value)
	if err != nil {
		return err
	}
	for _, one := range all {
		if one != "*" && !token(one) {
			return fmt.Errorf("%q is no name of a header or method", clipped(one))
		}
	}
	*to = all
	return nil
}

// token says whether a text can be the name of a header.
func token(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
