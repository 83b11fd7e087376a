// A remote storage that forgets what it gets: it lets a broker have topics with remote.storage.enable=true.

import java.io.InputStream;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

public class NoRemoteStorage implements RemoteStorageManager {
    @Override
    public void configure(Map<String, ?> configs) {}

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data) {
        return Optional.empty();
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        throw new RemoteStorageException("it is forgotten");
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        throw new RemoteStorageException("it is forgotten");
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType kind) throws RemoteStorageException {
        throw new RemoteStorageException("it is forgotten");
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) {}

    @Override
    public void close() {}
}
