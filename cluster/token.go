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

// A joinToken is what a node or a further server joins with: a secret that the
// server knows, and what it knows the server by. Who has that of servers gets
// the keys of the cluster's authorities, so it is another secret.
type joinToken struct {
	caHash string // hex SHA-256 of the CA's PEM; empty: not known
	secret string
	server bool // of servers
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
		return joinToken{}, errors.New("it does not end with ::node: or ::server: and a secret; copy the token whole")
	}
	return joinToken{strings.ToLower(hash), secret, role == "server"}, nil
}

func (t joinToken) String() string {
	role := "::node:"
	if t.server {
		role = "::server:"
	}
	return tokenFormat + t.caHash + role + t.secret
}

// file is the name of the file that such a token is in, in a server's --data-dir.
func (t joinToken) file() string {
	if t.server {
		return "server-token"
	}
	return "node-token"
}

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

// ownToken is the token that a server was given.
func ownToken(token string, err error) (joinToken, error) {
	if token == "" || err != nil {
		return joinToken{}, err
	}
	t, err := parseToken(token)
	if err != nil {
		return t, fmt.Errorf("--token: %w", err)
	}
	return t, nil
}

// keepToken gives what nodes or servers join this server with, and keeps it in a
// file for the user to copy: the secret given, that of the last start, or a new
// one.
func keepToken(file, secret string, ca []byte, servers bool) (joinToken, error) {
	if secret == "" {
		if b, err := os.ReadFile(file); err == nil {
			last, err := parseToken(strings.TrimSpace(string(b)))
			if err != nil {
				return joinToken{}, fmt.Errorf("read %s: %w; or remove it for a new one", file, err)
			}
			secret = last.secret
		} else if !errors.Is(err, os.ErrNotExist) {
			return joinToken{}, err
		} else {
			secret = strings.ToLower(rand.Text())
		}
	}
	t := joinToken{hashCA(ca), secret, servers}
	return t, writeFile(file, []byte(t.String()+"\n"), 0o600)
}

var errOneSecret = errors.New("--server-token is the secret that nodes join with too; give another, or none: who has it gets the keys of the cluster")

// tokens are what nodes join with, and what servers do.
func (l layout) tokens(o *Options, ca []byte) (nodes, servers joinToken, err error) {
	if nodes, err = keepToken(l.tokenFile(), o.secret, ca, false); err != nil {
		return
	}
	if servers, err = keepToken(l.serverTokenFile(), o.serverSecret, ca, true); err != nil {
		return
	}
	if nodes.secret == servers.secret {
		err = errOneSecret
	}
	return
}
