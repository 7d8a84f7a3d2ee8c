// A catalog of tables in the memory of one JVM, with the row-level operations that MERGE wants: a
// stand-in for a table format, of which none runs with this Spark yet. Each write leaves the table's
// rows as lines of JSON in the working directory.
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class MemoryCatalog implements TableCatalog, SupportsNamespaces {
    static final Map<String, MemoryTable> TABLES = new ConcurrentHashMap<>();
    private String name;

    public void initialize(String name, CaseInsensitiveStringMap options) { this.name = name; }
    public String name() { return name; }

    public Identifier[] listTables(String[] namespace) {
        return TABLES.keySet().stream()
            .filter(each -> each.startsWith(String.join(".", namespace) + "."))
            .map(each -> Identifier.of(namespace, each.substring(each.lastIndexOf('.') + 1)))
            .toArray(Identifier[]::new);
    }
    public Table loadTable(Identifier id) throws NoSuchTableException {
        MemoryTable found = TABLES.get(id.toString());
        if (found == null) throw new NoSuchTableException(id);
        return found;
    }
    public Table createTable(Identifier id, Column[] columns, Transform[] cut, Map<String, String> given) {
        MemoryTable made = new MemoryTable(id.toString(), columns, given);
        TABLES.put(id.toString(), made);
        return made;
    }
    public Table alterTable(Identifier id, TableChange... changes) throws NoSuchTableException {
        MemoryTable table = (MemoryTable) loadTable(id);
        for (TableChange each : changes)
            if (each instanceof TableChange.SetProperty set) table.properties.put(set.property(), set.value());
            else if (each instanceof TableChange.RemoveProperty gone) table.properties.remove(gone.property());
            else throw new UnsupportedOperationException(each.toString());
        return table;
    }
    public boolean dropTable(Identifier id) { return TABLES.remove(id.toString()) != null; }
    public void renameTable(Identifier before, Identifier after) { throw new UnsupportedOperationException(); }

    public String[][] listNamespaces() { return new String[][] {{"shop"}}; }
    public String[][] listNamespaces(String[] of) { return new String[0][]; }
    public Map<String, String> loadNamespaceMetadata(String[] of) { return Map.of(); }
    public void createNamespace(String[] of, Map<String, String> given) {}
    public void alterNamespace(String[] of, NamespaceChange... changes) {}
    public boolean dropNamespace(String[] of, boolean cascade) { return false; }
    public boolean namespaceExists(String[] of) { return true; }

    static class MemoryTable implements SupportsRead, SupportsWrite, SupportsRowLevelOperations {
        final String name;
        final Column[] columns;
        final Map<String, String> properties;
        volatile List<InternalRow> rows = List.of();

        MemoryTable(String name, Column[] columns, Map<String, String> given) {
            this.name = name;
            this.columns = columns;
            properties = new LinkedHashMap<>(given);
        }
        public String name() { return name; }
        public Column[] columns() { return columns; }
        public Map<String, String> properties() { return properties; }
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE);
        }
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return () -> new Whole(name, CatalogV2Util.v2ColumnsToStructType(columns));
        }
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) { return new Written(name, info.schema(), false); }
        public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
            return () -> new RowLevelOperation() {
                public Command command() { return info.command(); }
                public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
                    return MemoryTable.this.newScanBuilder(options);
                }
                public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
                    return new Written(name, info.schema(), true);
                }
            };
        }
    }

    record Name(String table) implements InputPartition {}

    record Whole(String table, StructType schema) implements Scan, Batch {
        public StructType readSchema() { return schema; }
        public Batch toBatch() { return this; }
        public InputPartition[] planInputPartitions() { return new InputPartition[] {new Name(table)}; }
        public PartitionReaderFactory createReaderFactory() { return new Readers(); }
    }

    static class Readers implements PartitionReaderFactory {
        public PartitionReader<InternalRow> createReader(InputPartition part) {
            var rows = TABLES.get(((Name) part).table()).rows.iterator();
            return new PartitionReader<>() {
                public boolean next() { return rows.hasNext(); }
                public InternalRow get() { return rows.next(); }
                public void close() {}
            };
        }
    }

    record Done(ArrayList<InternalRow> rows) implements WriterCommitMessage {}

    static class Written implements WriteBuilder, SupportsTruncate, Write, BatchWrite {
        private final String table;
        private final StructType schema;
        private boolean isWhole;

        Written(String table, StructType schema, boolean isWhole) {
            this.table = table;
            this.schema = schema;
            this.isWhole = isWhole;
        }
        public WriteBuilder truncate() { isWhole = true; return this; }
        public Write build() { return this; }
        public BatchWrite toBatch() { return this; }
        public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) { return new Writers(schema); }
        public void commit(WriterCommitMessage[] messages) {
            MemoryTable found = TABLES.get(table);
            List<InternalRow> all = new ArrayList<>(isWhole ? List.of() : found.rows);
            for (WriterCommitMessage each : messages) all.addAll(((Done) each).rows());
            found.rows = all;
            var asRow = CatalystTypeConverters.createToScalaConverter(CatalogV2Util.v2ColumnsToStructType(found.columns));
            var lines = all.stream().map(each -> ((Row) asRow.apply(each)).json()).toList();
            try {
                Files.write(Path.of(table + ".json"), lines);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
        public void abort(WriterCommitMessage[] messages) {}
    }

    record Writers(StructType schema) implements DataWriterFactory {
        public DataWriter<InternalRow> createWriter(int part, long task) {
            UnsafeProjection copy = UnsafeProjection.create(schema);
            ArrayList<InternalRow> rows = new ArrayList<>();
            return new DataWriter<>() {
                public void write(InternalRow row) { rows.add(copy.apply(row).copy()); }
                public WriterCommitMessage commit() { return new Done(rows); }
                public void abort() {}
                public void close() {}
            };
        }
    }
}
