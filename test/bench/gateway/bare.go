package main

import (
	"context"
	"net"
)

// serveBare is the least that a proxy in Go does: it reads a request and writes it to a
// connection of its own, and the same with the answer, whatever they are. What it costs is what
// no proxy of net.Conn is below.
func serveBare(ctx context.Context, port, backend string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil // the end
		}
		go passOn(c, backend)
	}
}

func passOn(client net.Conn, backend string) {
	defer client.Close()
	server, err := net.Dial("tcp", backend)
	if err != nil {
		return
	}
	defer server.Close()
	buf := make([]byte, 4<<10)
	for {
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			n, err := way[0].Read(buf)
			if err != nil {
				return
			}
			if _, err := way[1].Write(buf[:n]); err != nil {
				return
			}
		}
	}
}
