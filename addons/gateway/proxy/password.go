package proxy

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// KnownHash reports whether a password's hash has a form that can be checked: bcrypt,
// Apache's MD5 or SHA-1, as htpasswd writes them.
func KnownHash(hash string) bool {
	if strings.HasPrefix(hash, "{SHA}") {
		return true
	}
	if scheme, _, ok := md5Salt(hash); ok && scheme != "" {
		return true
	}
	cost, err := bcrypt.Cost([]byte(hash))
	return err == nil && cost <= maxCost
}

// maxCost bounds what one check of a password takes: with bcrypt's 14, a second.
const maxCost = 14

// checkPassword compares a password with a hash of it.
func checkPassword(hash, password string) bool {
	if sum, ok := strings.CutPrefix(hash, "{SHA}"); ok {
		is := sha1.Sum([]byte(password))
		return same(sum, base64.StdEncoding.EncodeToString(is[:]))
	}
	if scheme, salt, ok := md5Salt(hash); ok {
		return same(hash, md5Crypt(password, salt, scheme))
	}
	return KnownHash(hash) && bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func md5Salt(hash string) (scheme, salt string, ok bool) {
	for _, scheme := range []string{"$apr1$", "$1$"} {
		if rest, found := strings.CutPrefix(hash, scheme); found {
			salt, _, ok = strings.Cut(rest, "$")
			return scheme, salt[:min(len(salt), 8)], ok
		}
	}
	return "", "", false
}

// md5Crypt is the algorithm of crypt(3)'s $1$, and of Apache's $apr1$, which differs in
// its name alone.
func md5Crypt(password, salt, scheme string) string {
	pw := []byte(password)
	alternate := md5.Sum([]byte(password + salt + password))
	b := []byte(password + scheme + salt)
	for n := len(pw); n > 0; n -= 16 {
		b = append(b, alternate[:min(n, 16)]...)
	}
	for n := len(pw); n > 0; n >>= 1 {
		if n&1 != 0 {
			b = append(b, 0)
		} else {
			b = append(b, pw[0])
		}
	}
	sum := md5.Sum(b)
	for i := range 1000 {
		b = b[:0]
		if i&1 != 0 {
			b = append(b, pw...)
		} else {
			b = append(b, sum[:]...)
		}
		if i%3 != 0 {
			b = append(b, salt...)
		}
		if i%7 != 0 {
			b = append(b, pw...)
		}
		if i&1 != 0 {
			b = append(b, sum[:]...)
		} else {
			b = append(b, pw...)
		}
		sum = md5.Sum(b)
	}
	const alphabet = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	out := []byte(scheme + salt + "$")
	encode := func(v uint, n int) {
		for range n {
			out = append(out, alphabet[v&63])
			v >>= 6
		}
	}
	for _, i := range [][3]int{{0, 6, 12}, {1, 7, 13}, {2, 8, 14}, {3, 9, 15}, {4, 10, 5}} {
		encode(uint(sum[i[0]])<<16|uint(sum[i[1]])<<8|uint(sum[i[2]]), 4)
	}
	encode(uint(sum[11]), 2)
	return string(out)
}
