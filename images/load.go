package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// Engine is the one call that [Load] makes; [client.Client] has it.
type Engine interface {
	ImageLoad(ctx context.Context, archive io.Reader, options ...client.ImageLoadOption) (image.LoadResponse, error)
}

// Load sends images to the engine, which then knows them by their tags. A tag that was there before moves.
func Load(ctx context.Context, engine Engine, imgs ...Image) error {
	archive, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.CloseWithError(WriteArchive(w, imgs...))
	}()
	defer func() {
		// This ends the writer, also where the engine gave up before the end of the stream.
		archive.Close()
		<-written
	}()
	response, err := engine.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return fmt.Errorf("load images into the engine: %w", err)
	}
	defer response.Body.Close()
	// The engine has said 200 before it reads the archive: what went wrong stands in the body.
	messages := json.NewDecoder(response.Body)
	for {
		var message struct{ Error string }
		switch err := messages.Decode(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("load images into the engine: read its answer: %w", err)
		case message.Error != "":
			return fmt.Errorf("load images into the engine: %s", message.Error)
		}
	}
}
