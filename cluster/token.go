package cluster

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A joinToken is what a node joins with: a secret that the server knows, and
// what the node knows the server by.
type joinToken struct {
	caHash string // hex SHA-256 of the CA's PEM; empty: any server is believed
	secret string
}

// tokenFormat begins a token that names its CA.
const tokenFormat = "K10"

// parseToken reads K10<hash>::node:<secret>, K10<hash>::server:<secret> or a
// secret alone.
func parseToken(s string) (joinToken, error) {
	rest, ok := strings.CutPrefix(s, tokenFormat)
	hash, who, long := strings.Cut(rest, "::")
	if !ok || !long {
		if s == "" || strings.ContainsAny(s, " \t\r\n") {
			return joinToken{}, errors.New("a secret has no blanks, and at least one character")
		}
		return joinToken{secret: s}, nil
	}
	role, secret, ok := strings.Cut(who, ":")
	if b, err := hex.DecodeString(hash); err != nil || len(b) != sha256.Size {
		return joinToken{}, errors.New("what follows K10 is not the hash of a CA; copy the token whole")
	}
	if !ok || role != "node" && role != "server" || secret == "" || strings.ContainsAny(secret, " \t\r\n") {
		return joinToken{}, errors.New("it does not end with ::node: and a secret; copy the token whole")
	}
	return joinToken{caHash: strings.ToLower(hash), secret: secret}, nil
}

func (t joinToken) String() string { return tokenFormat + t.caHash + "::node:" + t.secret }

// hashCA is what a token calls a CA.
func hashCA(pem []byte) string {
	sum := sha256.Sum256(pem)
	return hex.EncodeToString(sum[:])
}

// networkID tells the cluster of a CA from others on the same wire.
func networkID(ca []byte) uint32 {
	sum := sha256.Sum256(ca)
	return max(1, uint32(sum[0])<<16|uint32(sum[1])<<8|uint32(sum[2]))
}

// readToken takes the token from the flags, or from the environment.
func readToken(value, file string) (string, error) {
	switch {
	case value != "" && file != "":
		return "", errors.New("--token and --token-file are both given; give one")
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w; on the server it is node-token in its --data-dir", err)
		}
		if value = strings.TrimSpace(string(b)); value == "" {
			return "", fmt.Errorf("--token-file %s is empty; on the server it is node-token in its --data-dir", file)
		}
	case value == "":
		value = os.Getenv("KNARR_TOKEN")
	}
	return value, nil
}

// ownSecret is the secret in a token that a server was given.
func ownSecret(token string, err error) (string, error) {
	if token == "" || err != nil {
		return "", err
	}
	t, err := parseToken(token)
	if err != nil {
		return "", fmt.Errorf("--token: %w", err)
	}
	return t.secret, nil
}

// token gives what nodes join this server with, and keeps it for the user to
// copy: the secret given, that of the last start, or a new one.
func (l layout) token(secret string, ca []byte) (joinToken, error) {
	if secret == "" {
		if b, err := os.ReadFile(l.tokenFile()); err == nil {
			last, err := parseToken(strings.TrimSpace(string(b)))
			if err != nil {
				return joinToken{}, fmt.Errorf("read %s: %w; or remove it for a new one", l.tokenFile(), err)
			}
			secret = last.secret
		} else if !errors.Is(err, os.ErrNotExist) {
			return joinToken{}, err
		} else {
			secret = strings.ToLower(rand.Text())
		}
	}
	t := joinToken{hashCA(ca), secret}
	return t, writeFile(l.tokenFile(), []byte(t.String()+"\n"), 0o600)
}
