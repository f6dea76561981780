package encryption

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"

	"golang.org/x/crypto/nacl/secretbox"
)

// A provider seals values and opens what it sealed. about is authenticated by
// those that can, so that a value cannot be moved to another key.
type provider interface {
	open(sealed, about []byte) (plain []byte, stale bool, err error)
	seal(plain, about []byte) ([]byte, error)
}

// A chain is providers told apart by a prefix of the value; the first one
// writes. unknown is the error for a value that none of them wrote.
type chain struct {
	links   []link
	unknown error
}

type link struct {
	prefix string
	provider
}

func (c *chain) open(sealed, about []byte) ([]byte, bool, error) {
	var errs []error
	for i, l := range c.links {
		rest, ok := bytes.CutPrefix(sealed, []byte(l.prefix))
		if !ok {
			continue
		}
		plain, stale, err := l.open(rest, about)
		switch {
		case err == nil:
			return plain, stale || i > 0, nil
		case l.prefix != "": // identity refuses what another one may open
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, false, errors.Join(errs...)
	}
	return nil, false, c.unknown
}

func (c *chain) seal(plain, about []byte) ([]byte, error) {
	first := c.links[0]
	sealed, err := first.seal(plain, about)
	if err != nil || first.prefix == "" {
		return sealed, err
	}
	return append([]byte(first.prefix), sealed...), nil
}

// identity leaves values as they are, and refuses those that are sealed.
type identity struct{}

var sealedPrefix = []byte("k8s:enc:")

func (identity) open(sealed, _ []byte) ([]byte, bool, error) {
	if bytes.HasPrefix(sealed, sealedPrefix) {
		return nil, false, errors.New("identity transformer tried to read encrypted data")
	}
	return sealed, false, nil
}

func (identity) seal(plain, _ []byte) ([]byte, error) { return plain, nil }

var errShort = errors.New("the stored data was shorter than the required size")

// gcm is AES-GCM: a random nonce, then the sealed value.
type gcm struct{ cipher.AEAD }

func newGCM(key []byte) (provider, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return gcm{aead}, err
}

func (g gcm) open(sealed, about []byte) ([]byte, bool, error) {
	n := g.NonceSize()
	if len(sealed) < n {
		return nil, false, errShort
	}
	plain, err := g.Open(nil, sealed[:n], sealed[n:], about)
	return plain, false, err
}

func (g gcm) seal(plain, about []byte) ([]byte, error) {
	nonce := make([]byte, g.NonceSize(), g.NonceSize()+len(plain)+g.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return g.Seal(nonce, nonce, plain, about), nil
}

// cbc is AES-CBC: a random first block, then the value padded as PKCS #7 says.
// It authenticates nothing.
type cbc struct{ cipher.Block }

func newCBC(key []byte) (provider, error) {
	block, err := aes.NewCipher(key)
	return cbc{block}, err
}

func (c cbc) open(sealed, _ []byte) ([]byte, bool, error) {
	switch {
	case len(sealed) < aes.BlockSize:
		return nil, false, errShort
	case len(sealed)%aes.BlockSize != 0:
		return nil, false, errors.New("the stored data is not a multiple of the block size")
	case len(sealed) == aes.BlockSize:
		return nil, false, errPadding
	}
	plain := make([]byte, len(sealed)-aes.BlockSize)
	cipher.NewCBCDecrypter(c.Block, sealed[:aes.BlockSize]).CryptBlocks(plain, sealed[aes.BlockSize:])
	n := int(plain[len(plain)-1])
	if n == 0 || n > len(plain) {
		return nil, false, errPadding
	}
	body, padding := plain[:len(plain)-n], plain[len(plain)-n:]
	if !bytes.Equal(padding, bytes.Repeat([]byte{byte(n)}, n)) {
		return nil, false, errors.New("invalid padding on input")
	}
	return body, false, nil
}

var errPadding = errors.New("invalid PKCS7 data (empty or not padded)")

func (c cbc) seal(plain, _ []byte) ([]byte, error) {
	n := aes.BlockSize - len(plain)%aes.BlockSize
	sealed := make([]byte, aes.BlockSize, aes.BlockSize+len(plain)+n)
	_, _ = rand.Read(sealed) // never fails
	sealed = append(sealed, plain...)
	sealed = append(sealed, bytes.Repeat([]byte{byte(n)}, n)...)
	body := sealed[aes.BlockSize:]
	cipher.NewCBCEncrypter(c.Block, sealed[:aes.BlockSize]).CryptBlocks(body, body)
	return sealed, nil
}

// box is NaCl's secretbox: a random nonce, then the sealed value.
type box struct{ key *[32]byte }

const boxNonce = 24

func newBox(key []byte) (provider, error) { return box{(*[32]byte)(key)}, nil }

func (b box) open(sealed, _ []byte) ([]byte, bool, error) {
	if len(sealed) < boxNonce+secretbox.Overhead {
		return nil, false, errShort
	}
	plain, ok := secretbox.Open(nil, sealed[boxNonce:], (*[boxNonce]byte)(sealed), b.key)
	if !ok {
		return nil, false, errors.New("the stored data was not sealed with this key")
	}
	return plain, false, nil
}

func (b box) seal(plain, _ []byte) ([]byte, error) {
	var nonce [boxNonce]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return secretbox.Seal(nonce[:], plain, &nonce, b.key), nil
}
